/** Contains the tests of checkpoints. */
package io.djltp.checkpoint;
