/**
 * Contains what a rank holds of a model: its shards and replicas, and the way back into the model.
 */
package io.djltp.internal.parameters;
