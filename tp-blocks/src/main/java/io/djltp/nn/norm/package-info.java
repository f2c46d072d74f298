/** Normalizations that DJL does not have. */
@NullMarked
package io.djltp.nn.norm;

import org.jspecify.annotations.NullMarked;
