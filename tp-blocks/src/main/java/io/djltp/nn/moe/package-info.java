/** Contains the mixture of experts, its routing and the loss of its router. */
@NullMarked
package io.djltp.nn.moe;

import org.jspecify.annotations.NullMarked;
