/** Layers of transformers, cut over the ranks. */
package io.djltp.nn.transformer;
