# A device without a GPU, for tests (engine/testing/software_device.h).
target_sources(engine PRIVATE
  device/software/executor.cc device/software/software_copy.cc device/software/software_device.cc
  device/software/software_graph.cc device/software/software_memory.cc device/software/software_options.cc
  device/software/threads_executor.cc device/software/virtual_executor.cc)
