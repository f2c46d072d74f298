/**
 * Contains what becomes of gradients: over which ranks they are summed, and the update of a step.
 */
package io.djltp.internal.gradient;
