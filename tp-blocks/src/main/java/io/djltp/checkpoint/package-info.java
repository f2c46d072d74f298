/** Contains checkpoints: the state of a trainer on disk, put back on any number of ranks. */
package io.djltp.checkpoint;
