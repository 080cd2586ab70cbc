// Signals that end a run, agreed on by all ranks so that none waits for one that has stopped.
#pragma once

namespace augur {

// Whether a rank has received a signal. All ranks call it together and get the same answer.
bool StopAgreed();

// Throws Stopped on every rank where one of them has received a signal. All ranks call it together. Alone it
// is CheckStop.
void CheckStopTogether();

// The signal that ended the run ("SIGTERM"), whichever rank received it; null while none did.
const char* StopSignalName();

}  // namespace augur
