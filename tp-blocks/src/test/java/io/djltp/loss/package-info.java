/** Contains the tests of losses and evaluators of logits that are cut over the ranks. */
package io.djltp.loss;
