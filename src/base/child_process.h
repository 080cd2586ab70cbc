// Programs run as children, each with a socket to it.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>

namespace augur {

struct ChildProcess {
  pid_t pid = -1;
  int fd = -1;  // our end of a stream socket; the child's is its descriptor 3
};

// Starts `arguments`, the first of which names the program, in a session of its own, so that the terminal's
// Ctrl-C does not reach it. Standard input is empty, standard output goes to our standard error.
// `environment` holds NAME=VALUE for variables that are not set. Throws Error at `where` for a program that
// cannot be started.
ChildProcess StartChild(std::span<const std::string> arguments, std::span<const std::string> environment,
                        std::string_view where);

// Ends the child and what it has started, closes the socket and waits. Returns wait's status.
int EndChild(const ChildProcess& child);

// "signal 11 (Segmentation fault)", "exit code 3".
std::string ExitText(int status);

}  // namespace augur
