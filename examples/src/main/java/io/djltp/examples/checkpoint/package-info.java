/** The {@code tp checkpoint} commands: what is in a checkpoint, and whether it is whole. */
package io.djltp.examples.checkpoint;
