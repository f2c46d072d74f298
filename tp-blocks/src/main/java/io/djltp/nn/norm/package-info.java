/** Normalizations that DJL does not have. */
package io.djltp.nn.norm;
