// Site: where in the Python program an op is pushed, and the op's name.
//
// Threads: the GIL is held in every function here; it guards the cache of file names.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

#include "engine/op.h"

namespace engine_python {

// Sets the folder of the package. Frames of files in it are never the site of a push.
void SetPackageFolder(std::string folder);
// The line of the innermost frame outside the package; empty if no Python frame is running.
engine::Site CallerSite();

// Where: how messages of refused calls begin. The text is made only when a message is written.
struct Where {
  const char* verb;
  engine::Name name;
  engine::Site site;
  std::string Text() const;  // "push of 'scale' at train.py:12: "
};
// The text as a Name, which is kept for the life of the process. A program that makes up ever new names gets one name
// for all of them after some ten thousand.
engine::Name KeptName(std::string_view text);
// The op's name: `given`, or the name of `fn`. Kept for the life of the process, once for each distinct text.
engine::Name OpName(nanobind::handle given, nanobind::handle fn, const Where& at);
// The text of a str; otherwise TypeError that names `what`.
std::string Text(nanobind::handle object, const std::string& what);

}  // namespace engine_python
