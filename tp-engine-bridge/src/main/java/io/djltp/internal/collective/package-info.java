/** Contains what all backends of collective operations share. */
@NullMarked
package io.djltp.internal.collective;

import org.jspecify.annotations.NullMarked;
