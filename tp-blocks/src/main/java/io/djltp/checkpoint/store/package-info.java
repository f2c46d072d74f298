/** The files of a checkpoint: sharded tensors that are written safely and read by slice. */
package io.djltp.checkpoint.store;
