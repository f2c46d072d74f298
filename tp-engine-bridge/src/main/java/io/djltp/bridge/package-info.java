/**
 * Contains the classes that bind the JavaCPP PyTorch preset to the libtorch which DJL has loaded:
 * views of DJL arrays as tensors, gradient hooks, and the autograd mappings of tensor parallelism.
 */
package io.djltp.bridge;
