/** Contains the MLP of a transformer, cut over the ranks. */
package io.djltp.nn.mlp;
