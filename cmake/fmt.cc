#include <fmt/format.h>
#include <fmt/ranges.h>
