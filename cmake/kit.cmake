# The component `kit`: what is carried to a machine with a GPU and runs there from its own folder (docs/gpu.md).
#   cmake --install BUILD --component kit --prefix build-kit --strip
# It is a part of no other installation. ./run kit builds it whole; the tests install it from their own tree.
set(kit_programs "")
foreach(program gpu_suite conformance_test gpu_counters_test communicator_test)
  if(TARGET ${program})
    list(APPEND kit_programs ${program})
    set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
  endif()
endforeach()
get_target_property(engine_type engine TYPE)
if(NOT TARGET gpu_suite OR NOT engine_type STREQUAL SHARED_LIBRARY)
  return()
endif()

install(TARGETS ${kit_programs} RUNTIME DESTINATION bin COMPONENT kit EXCLUDE_FROM_ALL)
install(TARGETS engine LIBRARY DESTINATION lib COMPONENT kit NAMELINK_SKIP EXCLUDE_FROM_ALL)
if(TARGET gpu_stf)
  set_target_properties(gpu_stf PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS gpu_stf LIBRARY DESTINATION lib COMPONENT kit EXCLUDE_FROM_ALL)
endif()
if(TARGET _core)
  set_target_properties(_core PROPERTIES INSTALL_RPATH "$ORIGIN/../../lib")
  install(TARGETS _core LIBRARY DESTINATION python/engine COMPONENT kit EXCLUDE_FROM_ALL)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/python/engine/ DESTINATION python/engine COMPONENT kit EXCLUDE_FROM_ALL
          FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
  foreach(folder perf/models examples/recommenders)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}/ DESTINATION ${folder} COMPONENT kit EXCLUDE_FROM_ALL
            FILES_MATCHING PATTERN "*.py" PATTERN "__pycache__" EXCLUDE)
  endforeach()
endif()

# Whatever else the programs load, but for the C and C++ libraries of the system and the driver. The CUDA runtime is the shared
# one: a program and libengine must have one instance of it.
set(kit_files "")
foreach(program IN LISTS kit_programs)
  string(APPEND kit_files " \"$<TARGET_FILE:${program}>\"")
endforeach()
install(CODE "set(kit_files ${kit_files})\nset(kit_library \"$<TARGET_FILE:engine>\")" COMPONENT kit EXCLUDE_FROM_ALL)
install(CODE [[
  file(GET_RUNTIME_DEPENDENCIES RESOLVED_DEPENDENCIES_VAR found EXECUTABLES ${kit_files} LIBRARIES ${kit_library}
       PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|stdc\\+\\+|gcc_s|cuda)[.]so" "^libengine[.]")
  file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/lib" TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN FILES ${found})
]] COMPONENT kit EXCLUDE_FROM_ALL)

install(PROGRAMS ${PROJECT_SOURCE_DIR}/perf/gpu/kit/go DESTINATION . COMPONENT kit EXCLUDE_FROM_ALL)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/perf/gpu/kit/ DESTINATION kit COMPONENT kit EXCLUDE_FROM_ALL
        FILES_MATCHING PATTERN "*.py" PATTERN "__pycache__" EXCLUDE)
install(FILES ${PROJECT_SOURCE_DIR}/perf/gpu/judge.py ${PROJECT_SOURCE_DIR}/perf/gpu/report.py
        DESTINATION perf/gpu COMPONENT kit EXCLUDE_FROM_ALL)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/perf/harness/ DESTINATION perf/harness COMPONENT kit EXCLUDE_FROM_ALL
        FILES_MATCHING PATTERN "*.py" PATTERN "__pycache__" EXCLUDE)

set(kit_python "")
if(TARGET _core)
  find_package(Python QUIET COMPONENTS Interpreter)  # found before; for its version
  set(kit_python ${Python_VERSION_MAJOR}.${Python_VERSION_MINOR})
endif()
set(kit_architectures "")
if(TARGET CUDA::cudart)
  find_package(CUDAToolkit QUIET)  # found before; for its version
  get_target_property(kit_architectures gpu_suite CUDA_ARCHITECTURES)
endif()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/kit.json @ONLY CONTENT [[{
 "version": "@PROJECT_VERSION@@ENGINE_STAMP@",
 "cuda": "@CUDAToolkit_VERSION@",
 "architectures": "@kit_architectures@",
 "compiler": "@CMAKE_CXX_COMPILER_ID@ @CMAKE_CXX_COMPILER_VERSION@",
 "python": "@kit_python@"
}
]])
install(FILES ${PROJECT_BINARY_DIR}/kit.json DESTINATION . COMPONENT kit EXCLUDE_FROM_ALL)
