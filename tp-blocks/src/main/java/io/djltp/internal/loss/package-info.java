/** Contains what losses and evaluators need of the ranks and of fused heads. */
package io.djltp.internal.loss;
