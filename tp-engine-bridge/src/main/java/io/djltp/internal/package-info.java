/** Contains what all packages of the library use. */
@NullMarked
package io.djltp.internal;

import org.jspecify.annotations.NullMarked;
