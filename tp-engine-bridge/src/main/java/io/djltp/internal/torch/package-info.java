/** Contains what the library needs of libtorch: views, autograd, memory, random numbers. */
package io.djltp.internal.torch;
