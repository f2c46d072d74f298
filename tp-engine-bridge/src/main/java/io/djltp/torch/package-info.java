/** Contains the access to libtorch beneath DJL: tensors, autograd, memory, random numbers. */
package io.djltp.torch;
