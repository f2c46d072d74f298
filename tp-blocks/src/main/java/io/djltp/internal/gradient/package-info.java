/**
 * Contains what becomes of gradients: over which ranks they are summed, and the update of a step.
 */
@NullMarked
package io.djltp.internal.gradient;

import org.jspecify.annotations.NullMarked;
