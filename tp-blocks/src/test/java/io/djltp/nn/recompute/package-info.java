/** Tests of parts of networks that are computed again in the backward pass. */
package io.djltp.nn.recompute;
