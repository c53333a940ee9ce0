/* program_source.h - what kernels are built from: the values of runtime.program. */
#ifndef CLD_OPENCL_PROGRAM_SOURCE_H
#define CLD_OPENCL_PROGRAM_SOURCE_H

enum cld_program_source {
    CLD_PROGRAM_AUTO,   /* OpenCL C; where that does not build, a module, said in a warning */
    CLD_PROGRAM_SOURCE, /* OpenCL C alone */
    CLD_PROGRAM_SPIRV   /* modules alone; one that is missing is an error */
};

#endif
