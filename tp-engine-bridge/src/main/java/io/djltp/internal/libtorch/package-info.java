/** Contains the libtorch that DJL has loaded, and its functions by name. */
package io.djltp.internal.libtorch;
