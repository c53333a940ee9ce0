# Makes the SPIR-V modules of the kernels that configs/tiny.ini needs (docs/spirv.md): runs CLDRAFT
# with the arguments ARGS. Finding out what a run asks for takes an OpenCL device; on a machine without
# one, where the command ends with 4, there are no modules.
execute_process(COMMAND ${CLDRAFT} spirv configs/tiny.ini --out ${OUT} ${ARGS} RESULT_VARIABLE status)
if(status EQUAL 4)
    message(STATUS "no SPIR-V modules: there is no OpenCL device")
elseif(NOT status EQUAL 0)
    message(FATAL_ERROR "cannot make SPIR-V modules")
endif()
file(WRITE ${OUT}.stamp "")
