/** Contains the tests of io.djltp.nn.attention. */
package io.djltp.nn.attention;
