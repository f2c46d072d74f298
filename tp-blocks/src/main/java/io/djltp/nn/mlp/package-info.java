/** Contains the MLP of a transformer, cut over the ranks. */
@NullMarked
package io.djltp.nn.mlp;

import org.jspecify.annotations.NullMarked;
