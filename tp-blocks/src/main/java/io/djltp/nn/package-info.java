/** Contains the tensor-parallel layers. */
@NullMarked
package io.djltp.nn;

import org.jspecify.annotations.NullMarked;
