"""Any device with an OpenCL 1.2 driver, through the loader that comes with pyopencl."""
