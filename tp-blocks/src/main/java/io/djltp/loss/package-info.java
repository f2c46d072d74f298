/** Contains losses and evaluators for logits that are cut over the ranks. */
package io.djltp.loss;
