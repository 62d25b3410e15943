// Site: where in the Python program an op is pushed, and the name it goes by.
//
// Threads: the GIL is held in every function here; that is what guards the cache of file names.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "engine/op.h"

namespace engine_python {

// Frames of files in this folder are the package's own and never a push site.
void SetPackageFolder(std::string folder);
// The innermost frame outside the package; empty where no Python frame is running.
engine::Site CallerSite();

// What messages of refused calls begin with; made into text only when one is written.
struct Where {
  const char* verb;
  engine::Name name;
  engine::Site site;
  std::string Text() const;  // "push of 'scale' at train.py:12: "
};
// The op's name: `given`, or the name of `fn`. Kept for the life of the process, once for each distinct text.
engine::Name OpName(nanobind::handle given, nanobind::handle fn, const Where& at);
// Text of a str; TypeError naming `what` otherwise.
std::string Text(nanobind::handle object, const std::string& what);

}  // namespace engine_python
