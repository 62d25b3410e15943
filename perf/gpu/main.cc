// gpu_suite --device software|cuda [--rounds N] [--quick] [--rows 1,2,...] [--parts counters,calibration,rows]: prints a line
// of JSON for each thing that it measured or counted. perf/gpu/suite.py and the kit run it, judge, and write result files.
// gpu_suite --probe: one line about the machine. gpu_suite --version.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "counters.h"
#include "engine/c_api.h"
#include "engine_stamp.h"
#include "suite.h"

namespace {

using namespace engine::perf;

int Usage(const char* problem) {
  std::fprintf(stderr,
               "gpu_suite: %s; usage: gpu_suite --device software|cuda [--rounds N] [--quick] [--rows 1,2,...] "
               "[--parts counters,calibration,rows] | --probe | --version\n",
               problem);
  return 2;
}

void Count(Suite& suite) {
  for (const Scenario& scenario : Scenarios()) {
    if (!suite.Wants(scenario.row)) continue;
    for (const Counter& c : scenario.run(suite.target))
      std::printf(R"({"type": "counter", "row": %d, "case": %s, "about": %s, "counter": %s, "got": %llu, "want": %llu})"
                  "\n",
                  scenario.row, Json(scenario.name).c_str(), Json(scenario.about).c_str(), Json(c.name).c_str(),
                  static_cast<unsigned long long>(c.got), static_cast<unsigned long long>(c.want));
    std::fflush(stdout);
  }
}

int Probe() {
  std::string why;
  const int devices = engine::CudaDeviceCount(&why);
  const CudaVersions versions = VersionsOfCuda();
  std::printf(R"({"devices": %d, "why": %s, "runtime": %d, "driver": %d, "description": %s})"
              "\n",
              devices, Json(why).c_str(), versions.runtime, versions.driver,
              devices ? Json(engine::MakeCudaDevice(0)->info().description).c_str() : "null");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string device = "software";
  int rounds = 9;
  bool quick = false;
  std::vector<int> only;
  std::string parts = "counters,calibration,rows";
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--probe") return Probe();
    if (option == "--version") {
      std::printf("%s, with libengine %s\n", ENGINE_STAMP, EngineVersion());
      return 0;
    }
    if (option == "--quick") {
      quick = true;
      continue;
    }
    if (i + 1 == argc) return Usage(("'" + option + "' is unknown, or lacks its value").c_str());
    const std::string value = argv[++i];
    if (option == "--device") {
      device = value;
    } else if (option == "--rounds") {
      rounds = std::atoi(value.c_str());
      if (rounds < 1) return Usage("--rounds wants a number from 1 up");
    } else if (option == "--parts") {
      parts = value;
    } else if (option == "--rows") {
      for (const char* p = value.c_str(); p; p = std::strchr(p, ',')) only.push_back(std::atoi(p += *p == ','));
    } else {
      return Usage(("no option '" + option + "'").c_str());
    }
  }
  try {
    std::string why;
    std::unique_ptr<Target> target;
    if (device == "software") target = MakeSoftwareTarget();
    if (device == "cuda") target = MakeCudaTarget(&why);
    if (!target)
      return Usage(device == "cuda" ? ("no cuda device: " + why).c_str() : ("no device '" + device + "'").c_str());
    std::printf(R"({"type": "device", "kind": %s, "description": %s, "judged": %s})"
                "\n",
                Json(device).c_str(), Json(target->device()->info().description).c_str(),
                target->judged() ? "true" : "false");
    Suite suite{*target, rounds, quick, only};
    const auto wants = [&](const char* part) { return parts.find(part) != std::string::npos; };
    if (wants("counters")) Count(suite);
    if (wants("calibration")) suite.Calibrate();
    if (wants("rows"))
      for (const auto rows : {SubmitRows, OverlapRows, HostRows, GraphRows, MemoryRows, TrainingRows, CollectiveRows,
                              SmartRows, TuningRows, StfRows})
        rows(suite);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_suite: %s\n", error.what());
    return 1;
  }
  return 0;
}
