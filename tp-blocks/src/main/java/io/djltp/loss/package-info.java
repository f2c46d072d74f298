/** Contains losses and evaluators for logits that are cut over the ranks. */
@NullMarked
package io.djltp.loss;

import org.jspecify.annotations.NullMarked;
