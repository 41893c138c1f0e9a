"""The student's ordered products, three times: plain torch, C++ for the CPU, Triton for the GPU."""
