/** Contains what the library needs of libtorch: views, autograd, memory, random numbers. */
@NullMarked
package io.djltp.internal.torch;

import org.jspecify.annotations.NullMarked;
