// metrics_events DIR LAST_STEP: writes {"step":…,"data":{…}} lines of standard input to the event file in
// DIR, as a run resumed after LAST_STEP would.
#include <iostream>
#include <string>

#include "base/json.h"
#include "metrics/tensorboard.h"

int main(int, char** argv) {
  augur::TensorBoardWriter writer(argv[1], std::stoll(argv[2]));
  for (std::string line; std::getline(std::cin, line);) {
    const augur::Json object = augur::ParseJson(line, "standard input");
    writer.Write(object["step"].get<int64_t>(), object["data"].get<augur::Metrics>());
  }
}
