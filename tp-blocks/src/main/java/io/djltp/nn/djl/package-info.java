/** Contains DJL's blocks that are made of several layers, computed by ranks together. */
package io.djltp.nn.djl;
