/** Contains what losses and evaluators need of the ranks and of fused heads. */
@NullMarked
package io.djltp.internal.loss;

import org.jspecify.annotations.NullMarked;
