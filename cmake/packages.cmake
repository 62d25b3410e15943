# What the build takes from elsewhere: oneTBB, and headers of dmlc-core. `pip install .` brings oneTBB along as a Python package;
# the headers lie in a source distribution, or are fetched. What cannot be had is named with the packages that have it.

# engine_folder_of_package(OUT PACKAGE FILE): the folder of FILE in a Python package that the extension's Python has; else "".
function(engine_folder_of_package out package file)
  set(folder "")
  if(ENGINE_BUILD_PYTHON)
    execute_process(COMMAND "${Python_EXECUTABLE}" -c "\
import importlib.metadata, pathlib, sys\n\
files = importlib.metadata.files(sys.argv[1]) or []\n\
print(next((str(pathlib.Path(f.locate()).resolve().parent) for f in files if f.name == sys.argv[2]), ''))"
                    ${package} ${file} OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  set(${out} "${folder}" PARENT_SCOPE)
endfunction()

# engine_find_tbb(): the target TBB::tbb.
macro(engine_find_tbb)  # not a function: it would keep the package's variables to itself
  engine_folder_of_package(tbb_config tbb-devel TBBConfig.cmake)
  find_package(TBB QUIET HINTS ${tbb_config})
  if(NOT TARGET TBB::tbb)
    message(FATAL_ERROR "The build needs oneTBB 2021 or newer, and found no TBBConfig.cmake. Install a package that has it: "
            "libtbb-dev (Debian, Ubuntu), tbb-devel (Fedora, PyPI, conda-forge), onetbb (Arch); or say where it is: "
            "-DTBB_ROOT=FOLDER.")
  endif()
  if(SKBUILD)
    engine_own_tbb()
  endif()
endmacro()

# engine_own_tbb(): a copy of oneTBB for a wheel, ENGINE_OWN_TBB, under a name of its own: whatever other oneTBB a process loads, or
# LD_LIBRARY_PATH has, is not taken for it. TBB::tbb becomes the copy.
function(engine_own_tbb)
  find_program(PATCHELF patchelf)
  if(NOT PATCHELF)
    message(FATAL_ERROR "A wheel carries a copy of oneTBB under another name, and giving it that needs patchelf. Install the package "
            "patchelf (Debian, Ubuntu, Fedora, PyPI, conda-forge).")
  endif()
  get_target_property(configurations TBB::tbb IMPORTED_CONFIGURATIONS)
  list(GET configurations 0 configuration)
  if("RELEASE" IN_LIST configurations)
    set(configuration RELEASE)
  endif()
  get_target_property(library TBB::tbb IMPORTED_LOCATION_${configuration})
  file(REAL_PATH ${library} library)
  set(copy ${PROJECT_BINARY_DIR}/tbb/libengine_tbb.so)
  configure_file(${library} ${copy} COPYONLY)
  execute_process(COMMAND ${PATCHELF} --set-soname libengine_tbb.so ${copy} COMMAND_ERROR_IS_FATAL ANY)
  foreach(configuration IN LISTS configurations)
    set_target_properties(TBB::tbb PROPERTIES IMPORTED_LOCATION_${configuration} ${copy}
                          IMPORTED_SONAME_${configuration} libengine_tbb.so)
  endforeach()
  set(ENGINE_OWN_TBB ${copy} PARENT_SCOPE)
endfunction()

# parameter.h and registry.h of dmlc-core 0.5, what they include, and the SHA-256 of each.
set(ENGINE_DMLC_HEADERS
    any.h=5b5803a5269e92e60522e5e81061418a47428abb0fc7b90e47f41bc68a902e9d
    base.h=c1d34fc3100643171893ccd4ab822970f9b2a515cb3035d453f8cd8fbf8f8b60
    build_config_default.h=3ec339986654a3c001a91f61f85eb0b440e3330cf6c3c20e0b48e5b6aaa2c6f2
    common.h=4c117cf308ca1b32f5d1a20e3feb30d2d8d76399bcec52a18ad6279f7ea8e4f6
    json.h=47e0a4ef5a475d6b7ac9c7eb86c88b933816a2a9da2d0740c7e4a8d48da6d81e
    logging.h=adb4c0816764bd563529b08bb1c6518b3ce94a419c73d5a3118a2f9717651482
    optional.h=90d8b47d4bc3fdd79400db3f171b6b39931d3ae5180ddc01fa071e8d5996ef82
    parameter.h=26fc16b1e92e27312551625bfe7a5fb9d48b5f842aa98b22c812752645676e37
    registry.h=64dfea9ded29e693b2c94d2aaf5a285cd45b46acd257fd60678ce6378f8b65f0
    strtonum.h=b996b90685c69c3fba60ab297a6f11bd4aec0eb9535f2c18b396c1a24b16a0bb
    type_traits.h=140a21b6b226a87091181986cecaaa5614d1ec60ef43577c20525cdf6626a4d8)
set(ENGINE_DMLC_URL https://raw.githubusercontent.com/dmlc/dmlc-core/f00e3ec7abc9f293a1b7061157b0a4e22a735cf5/include/dmlc
    CACHE STRING "Where headers of dmlc-core 0.5 are fetched from, if they are neither on the machine nor beside the sources")

# engine_copy_dmlc(FROM TO): the headers, from a folder or a URL, into TO/dmlc. Those of a URL have to be the ones that are known.
function(engine_copy_dmlc from to)
  foreach(header IN LISTS ENGINE_DMLC_HEADERS)
    string(REGEX MATCH "^(.*)=(.*)$" match ${header})
    set(name ${CMAKE_MATCH_1})
    set(hash ${CMAKE_MATCH_2})
    if(IS_DIRECTORY ${from})
      file(COPY ${from}/${name} DESTINATION ${to}/dmlc)
      continue()
    endif()
    file(DOWNLOAD ${from}/${name} ${to}/dmlc/${name} STATUS status INACTIVITY_TIMEOUT 20)
    list(POP_FRONT status failed)
    file(SHA256 ${to}/dmlc/${name} found)
    if(NOT failed AND NOT found STREQUAL hash)
      set(status "this is another file than ${name} of dmlc-core 0.5")
      set(failed 1)
    endif()
    if(failed)
      file(REMOVE_RECURSE ${to}/dmlc)
      message(FATAL_ERROR "The build needs headers of dmlc-core. There is no dmlc/parameter.h on this machine, and fetching "
              "${from}/${name} failed: ${status}. Install a package that has them: libdmlc-dev (Debian, Ubuntu), dmlc-core "
              "(conda-forge); or say where they are: -DDMLC_INCLUDE=FOLDER, the one in which dmlc/parameter.h lies.")
    endif()
  endforeach()
endfunction()

# engine_find_dmlc(): sets DMLC_INCLUDE.
function(engine_find_dmlc)
  find_path(DMLC_INCLUDE dmlc/parameter.h HINTS ${PROJECT_SOURCE_DIR}/third_party)
  if(NOT DMLC_INCLUDE)
    message(STATUS "engine: fetching headers of dmlc-core")
    engine_copy_dmlc(${ENGINE_DMLC_URL} ${PROJECT_BINARY_DIR}/third_party)
    set(DMLC_INCLUDE ${PROJECT_BINARY_DIR}/third_party CACHE PATH "The folder in which dmlc/parameter.h lies" FORCE)
  endif()
endfunction()
