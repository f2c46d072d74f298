/** Contains the libtorch that DJL has loaded, and its functions by name. */
@NullMarked
package io.djltp.internal.libtorch;

import org.jspecify.annotations.NullMarked;
