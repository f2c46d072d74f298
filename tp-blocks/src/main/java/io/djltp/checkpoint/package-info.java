/** Contains checkpoints: the state of a trainer on disk, put back on any number of ranks. */
@NullMarked
package io.djltp.checkpoint;

import org.jspecify.annotations.NullMarked;
