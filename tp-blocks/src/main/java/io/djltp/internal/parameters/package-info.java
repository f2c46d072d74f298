/**
 * Contains what a rank holds of a model: its shards and replicas, and the way back into the model.
 */
@NullMarked
package io.djltp.internal.parameters;

import org.jspecify.annotations.NullMarked;
