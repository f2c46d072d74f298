/** Trained models as the files of others. */
package io.djltp.examples.checkpoint;
