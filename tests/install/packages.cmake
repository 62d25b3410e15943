# What cmake/packages.cmake does where the machine lacks something: it names packages, and takes no other file for the one it fetches.
#   cmake -DSOURCE_DIR=. -DBUILD_DIR=build -P tests/install/packages.cmake
if(CASE)  # a process for each, because it ends with the error
  foreach(kind CMAKE_PATH CMAKE_ENVIRONMENT_PATH SYSTEM_ENVIRONMENT_PATH CMAKE_SYSTEM_PATH PACKAGE_REGISTRY PACKAGE_ROOT_PATH)
    set(CMAKE_FIND_USE_${kind} OFF)
  endforeach()
  set(PROJECT_BINARY_DIR ${FOLDER}/build)
  include(${SOURCE_DIR}/cmake/packages.cmake)
  if(CASE STREQUAL "tbb")
    engine_find_tbb()
  else()
    engine_find_dmlc()
  endif()
  return()
endif()

set(folder ${BUILD_DIR}/packages_test)
file(REMOVE_RECURSE ${folder})
file(WRITE ${folder}/other/any.h "// not the one")

# expect(CASE URL TEXT...): the process says each text; none: it succeeds.
function(expect case url)
  execute_process(COMMAND ${CMAKE_COMMAND} -DCASE=${case} -DFOLDER=${folder} -DSOURCE_DIR=${SOURCE_DIR} -DENGINE_DMLC_URL=${url}
                          -P ${CMAKE_CURRENT_LIST_FILE}
                  RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  if(NOT ARGN AND failed)
    message(SEND_ERROR "${case} from ${url}: ${said}")
  endif()
  foreach(text IN LISTS ARGN)
    string(FIND "${said}" "${text}" at)
    if(at EQUAL -1)
      message(SEND_ERROR "${case} from ${url} does not say '${text}': ${said}")
    endif()
  endforeach()
endfunction()

expect(tbb "" "needs oneTBB 2021 or newer" "libtbb-dev (Debian, Ubuntu)" "-DTBB_ROOT=FOLDER")
expect(dmlc file://${folder}/nowhere "There is no dmlc/parameter.h on this machine, and fetching" "libdmlc-dev (Debian, Ubuntu)"
       "-DDMLC_INCLUDE=FOLDER")
expect(dmlc file://${folder}/other "this is another file than any.h of dmlc-core 0.5" "libdmlc-dev (Debian, Ubuntu)")
if(EXISTS ${folder}/build/third_party/dmlc)
  message(SEND_ERROR "a header that failed to be fetched was left behind")
endif()
file(SHA256 ${DMLC_INCLUDE}/dmlc/parameter.h found)
if(found STREQUAL "26fc16b1e92e27312551625bfe7a5fb9d48b5f842aa98b22c812752645676e37")
  expect(dmlc file://${DMLC_INCLUDE}/dmlc)
  if(NOT EXISTS ${folder}/build/third_party/dmlc/registry.h)
    message(SEND_ERROR "the headers were not fetched")
  endif()
endif()
