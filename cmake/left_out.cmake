# What this build lacks and could have, said at the end of the configuration, where it is read.

# engine_left_out(WHAT WHY)
function(engine_left_out what why)
  set_property(GLOBAL APPEND PROPERTY ENGINE_LEFT_OUT "${what}: ${why}")
endfunction()

function(engine_say_what_is_left_out)
  get_property(left_out GLOBAL PROPERTY ENGINE_LEFT_OUT)
  list(REMOVE_DUPLICATES left_out)
  if(NOT left_out)
    message(STATUS "engine: nothing is left out")
    return()
  endif()
  list(JOIN left_out "\n--    * " lines)
  message(STATUS "============ LEFT OUT of this build ============\n--    * ${lines}\n"
                 "-- =================================================")
endfunction()
