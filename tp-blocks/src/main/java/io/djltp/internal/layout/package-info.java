/** Contains arrays of a forward pass that carry their placement over the ranks. */
@NullMarked
package io.djltp.internal.layout;

import org.jspecify.annotations.NullMarked;
