/** The {@code tp checkpoint} commands: what is in a checkpoint, and whether it is whole. */
@NullMarked
package io.djltp.examples.checkpoint;

import org.jspecify.annotations.NullMarked;
