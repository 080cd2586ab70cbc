"""What verl loads through its entry point verl.plugins: augur.verl, and a line in the log where that fails.

A package of its own, since `import augur` may fail before anything in augur.verl runs, and verl logs a plug-in that
fails at DEBUG alone: the run would end over an unknown loss mode, or go on without the support.
"""

import logging

try:
    import augur.verl  # noqa: F401
except Exception as error:
    logging.getLogger("augur").exception(
        f"augur.verl could not be loaded, so the loss modes named augur are not there: {error}"
    )
    try:
        import verl

        from augur import guards

        guards.check_version("verl", verl.__version__, guards.TESTED["verl"])
    except Exception:  # augur itself cannot be loaded, as the line above says
        pass
    raise
